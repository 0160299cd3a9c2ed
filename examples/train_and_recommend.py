"""Train on a file of purchases and print recommendations: ``python train_and_recommend.py FILE CUSTOMER``."""

import sys

import cordgt

path, customer = sys.argv[1:3]
run = cordgt.train(path, "counts", refit=True)
print(f"AP on the test period: {100 * run.metrics['test']['transductive']['ap']:.1f} %")
for partner in run.recommend(customer, top=5):
    print(f"{partner.node}: score {partner.score:.2f}, bought {partner.met} times")
