"""The report of the influence ablation: `archer ablate collect` on the folder of its launcher.

python scripts/train/collect_influence_ablation_results_0220.py [FOLDER] [--out FOLDER]
"""

import sys

from archer.cli import main

if len(sys.argv) == 1:
    sys.argv.append("output/ablation/influence_0220")
sys.argv[1:1] = ["ablate", "collect"]
main()
