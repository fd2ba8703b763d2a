import sys

from pointgrad.cli import main

sys.exit(main())
