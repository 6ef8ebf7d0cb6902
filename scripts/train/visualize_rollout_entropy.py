"""The viewer under the name of the first Archer scripts: `archer view` with the same options.

python scripts/train/visualize_rollout_entropy.py --trace-dir output/PROJECT/EXPERIMENT/entropy_trace
"""

import sys

from archer.cli import main

sys.argv.insert(1, "view")
main()
