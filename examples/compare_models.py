"""Compare two models on the same events and negatives: ``python compare_models.py FILE MODEL_A MODEL_B``."""

import sys

import cordgt
from cordgt.analysis.compare import compare_runs

path, *models = sys.argv[1:4]
runs = [cordgt.train(path, model, report=False) for model in models]
print(*compare_runs(*runs, bootstrap=500)["remarks"], sep="\n")
