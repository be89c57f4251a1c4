import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.add_argument("--lr", type=float)
args = parser.parse_args()
print("learning rate", args.lr)
for n in range(1, args.steps + 1):
    print(f"step={n} tps={2000 + n:,} loss={5 / n:.3f}")
