"""A training loop in plain PyTorch. It computes what `cordgt.train(stream, "counts", epochs=1)` computes."""

import torch

import cordgt
from cordgt.models.counts import Counts, CountsSettings
from cordgt.tasks.link_evaluation import evaluate

SEED, EPOCHS, BATCH_SIZE = 0, 1, 100

stream = cordgt.synthetic_stream().stream
task = cordgt.LinkTask.prepare(stream, seed=SEED)  # splits and indexes the events
torch.manual_seed(SEED)
model = Counts(CountsSettings(), edge_dim=stream.edge_dim, node_dim=stream.node_dim)
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
losses = []

for epoch in range(1, EPOCHS + 1):
    model.train()
    for history, queries in task.batches("train", batch_size=BATCH_SIZE, seed=SEED, epoch=epoch):
        loss = model.losses(model.read(history, queries)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    ap = evaluate(model, task, "validation", "transductive")["ap"]
    print(f"epoch {epoch}: last loss {losses[-1]:.4f}, validation AP {ap:.4f}")
