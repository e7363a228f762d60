"""Starts the demo; Ctrl-C is one word also while the modules are still being loaded."""

import sys


def main() -> int:
    try:
        from scripts.demonstration.command import main as perform

        return perform()
    except KeyboardInterrupt:
        print("demo: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
