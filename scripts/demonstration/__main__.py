"""Starts the demo; Ctrl-C is one sentence also while the modules are loaded."""

import sys


def main() -> int:
    try:
        from scripts.demonstration.run import main as run_demo

        return run_demo()
    except KeyboardInterrupt:
        print("demo: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
