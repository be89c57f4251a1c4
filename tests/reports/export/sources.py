"""What exports are made of in these tests: a results file of several origins, and a folder of runs."""

from __future__ import annotations

from pathlib import Path

HEADER = "model,n_gpus,nnodes,training_precision,gpu_architecture,performance,metric,status,args,git_commit\n"
ROWS = (
    "llama,8,1,bf16,gfx942,2500.5,tokens_per_s_per_gpu,SUCCESS,=cmd|' /C calc'!A0,1234567e8\n"
    'llama,8,1,bf16,gfx942,1.5e+03,tokens_per_s_per_gpu,SUCCESS,"--name ""a, b""",0012\n'
    '"ev""il\\\x1b[2J",many,1,,gfx950,nan,tflops,SUCCESS,,\n'
    "gone,8,1,,,,,FAILURE,,\n"
    "gone,8,1,,,,,FAILURE,,\n"
)
VALUES = [2500.5, 1500.0, None, None, None]  # of ROWS, by hand


def write_perf(folder: Path, more: str = "") -> Path:
    path = folder / "perf.csv"
    path.write_text(HEADER + ROWS + more)
    return path
