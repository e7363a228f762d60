"""What Python starts in the plugin: vcuda, which shows in its help the name that kubectl knows it by."""

import sys

from deviceplugin.cli import main

sys.argv[0] = "kubectl-vcuda"
main()
