"""`python -m deviceplugin` is `vcuda`."""

from deviceplugin.cli import main

main()
