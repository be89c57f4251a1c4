"""Lines that tell of a training's loss that is NaN, and lines that only look so, in the log of a script."""

from __future__ import annotations

from madlite.model import Status
from tests.measure.training_logs import parsed, titan
from tests.rows import each_row

BROKEN = (
    "step 3 loss=nan",
    "iter 3 loss: NaN",
    "epoch 3: train loss: nan",
    "{'loss': nan, 'epoch': 0.1}",
    "{'train_loss': 'nan', 'norm': 'nan', 'epoch': '0.03'}",
    '{"train_loss": NaN, "step": 3}',
    '{"step": 3, "train/loss": NaN}',
    "step=3 train_loss=nan",
    "train/loss: nan step: 3",
    "Epoch [1/10], Step [100/600], Loss: nan",
    " iteration        5/      10 | lm loss: nan | load_balancing_loss: 1.02E+00 | loss scale: 1.0 |",
    "Step 10 | Train Loss nan",
    "global_step=10, loss=tensor(nan, device='cuda:0')",
    "global_step=10, loss=tensor([nan], device='cuda:0')",
    "Epoch 1 - train loss: nan - val loss: nan",
    "10/10 [=====] - 1s - epoch 3 - loss: nan - accuracy: 0.1 - val_loss: nan - val_accuracy: 0.1",
    "Steps:  10%|#  | 100/1000 [00:01<00:10, 1.0it/s, loss=nan, lr=1e-4]",
    "Training:  10%|#  | 100/1000 [00:01<00:10, 1.0it/s, loss=nan, lr=1e-4]",
    "Epoch 0:  10%|#   | 3/30 [00:01<00:10,  2.0it/s, v_num=0, train_loss_step=nan.0]",
    "Epoch 0:  10%|#   | 3/30 [00:01<00:10,  2.0it/s, v_num=0, train_loss=nan.0]",
    "step 3: loss is nan",
    "step 3: loss became NaN, stopping",
    "Loss is nan at step 3",
    "loss at step 3: nan",
    "Loss after iteration 100: nan",
    "Loss after epoch 3: nan",
    "loss (step 3): nan",
    "step 3 training loss: nan",
    "step 3 mean loss nan",
    "step 3 avg loss nan",
    "step 3 total loss: nan",
    "step 3 total_loss: nan aux_loss: 0.01",
    "step 3 loss nan aux_loss 0.01",
    "step 3 loss nan avg loss 2.31",
    "step 3 time 5.2s loss nan",
    "step 3 0.52s/it loss nan",
    "step 3 8192 tokens/s loss nan",
    "step 3 12 ms loss nan",
    "INFO step 3 loss nan",
    "2026-11-22 10:00:00 INFO train.py:33 epoch 1 step 3 loss nan lr 1e-4",
    "[rank0]: step 3 loss nan",
    "INFO:root:step 3 lr 1e-4 loss nan",
    "step: 3, loss: nan, ppl: nan",
    "step 3 | loss nan | best 2.31",
    "step 3 | best loss 2.31 | loss nan",
    "step 3 | prev loss 2.31 | loss nan",
    "step 3 loss (avg): nan",
    "step 3 loss/train: nan",
    "step 3: ce_loss=nan",
    "step 3: policy loss = nan",
    "step 3 finished with loss nan",
    "step loss: nan",
    "train step loss: nan",
    "| epoch   1 |   200/ 2983 batches | lr 5.00 | ms/batch 10.1 | loss   nan | ppl      nan",
    "Train Epoch: 1 [640/60000 (1%)]\tLoss: nan",
    "Epoch: [0][10/500]\tTime 0.5 (0.6)\tLoss nan (nan)\tAcc@1 0.1",
    "step 3 loss nan num_valid_tokens 8192",
    "2026-11-22 | INFO | epoch 001:      3 / 100 loss=nan, ppl=nan, wps=0, ups=0, wpb=8, bsz=8, num_updates=3, lr=1e-4",
    "epoch 1, batch 3: loss=-nan",
    "step 3 Loss: NaN. Stopping.",
    "Step #3: loss -> nan",
    "Iter 3, running loss: nan",
    "iter: 3  total_loss: nan  loss_cls: nan  loss_box: 0.1",
    "[Epoch 1] loss: nan",
    "[100/1000] step loss nan",
    "Epoch: 3, Loss: nan, Accuracy: 0.1",
    "step=10 loss=nan lr=0.0001 grad_norm=nan",
    ">>> epoch 3 | batch 10 | loss nan",
    "Step 10, Loss=nan, Perplexity=nan",
    "Iteration 10 - Training loss: NaN",
    "Loss: nan (step 10)",
    "step 3 loss_ce: nan",
    "step 10 loss: +nan",
    "step 10 loss=float('nan')",
    "step10 loss nan",
    "step 10 micro loss nan",
    "(step=0000010) Train Loss: nan, Train Steps/Sec: 1.5",
    "step 10, the training loss has become nan",
    "[epoch 3] training_loss=nan, lr=0.001",
    "step 3 | loss_mse=nan",
    "step 3 batch loss nan",
    "step 3, world model loss: nan",
    "step 3: the loss is now nan",
    "step 10, the training loss has become nan",
    "step 3 pretrain loss: nan",
)

HARMLESS = (
    "Validation epoch 0, loss: nan",
    "eval: step 10 loss nan",
    "[eval] step=10 loss=nan",
    "epoch 0 dev loss nan",
    "step 0 | loss 2.31 | prev loss nan",
    "step 0 | loss 2.31 | ema loss: nan",
    "epoch 1/3 loss 2.3 last loss: nan",
    "WARNING: checks each step whether loss = nan",
    "step 3 loss: NaN-free",
    "step 0 ema_loss=nan",
    "step 0 | loss 2.31 | mean loss nan",
    "step 0 | loss: 2.31 | running loss: nan",
    "step 0 loss 2.31 (avg loss nan)",
    "step 10 val/loss nan",
    "step 10 valid_loss nan",
    "step 10 | validation | loss nan",
    "Test set, epoch 3: average loss: nan",
    "epoch 3 held-out loss: nan",
    "epoch 3 holdout loss nan",
    "[dev] epoch 0 loss nan",
    "step 10 loss nan (eval)",
    "{'eval_loss': nan, 'epoch': 1.0}",
    "split=val step=3 loss=nan",
    "{'eval/loss': nan, 'train/global_step': 3}",
    "step 0 best loss nan",
    "best: loss=nan step 0",
    "Best so far: loss nan at step 0",
    "step 3: checks whether loss = nan",
    "if loss is nan at step 3 the run stops",
    "stop when loss is nan for 3 steps",
    "step 3: no loss is nan",
    "step 3 loss nan count 0",
    "step 3 loss_nan_count 0",
    "step 3 loss nan-check ok",
    "step 3 loss scale: nan",
    "step 3 loss mask: nan",
    "each step loss = nan means a skipped batch",
    "logs loss: nan where a step is skipped",
    "loss = cross_entropy(x, y)  # nan at step 0",
    "step 0 moving loss: nan",
    "step 0 smoothed loss nan",
    "step 0 min loss nan max loss nan",
    "step 0 target loss: nan",
    "step 0 teacher loss: nan",
    "step 0 reward loss: nan",
    "step 0 loss ema: nan",
    "step 0 loss (best): nan",
    "step 0 loss_best nan",
    "step 0 | loss 2.31 | loss_ma: nan",
    "step 0 gloss nan",
    "step 1 loss: nanoseconds",
    "step 3 loss 2.3 nan 0",
    "train loss 2.3 val loss nan step 3",
    "step 3 test loss nan",
    "UserWarning: step 3 loss is nan",
    "W1122 10:00:00.000 step 3 loss: nan",
    "step 3 loss: 2.31, z_loss: nan",
    "previous step loss: nan step 0",
    "last epoch loss nan, epoch 0",
    "test_loss: nan epoch: 3",
    "Evaluating:  10%|#  | 3/30 [00:01<00:10, 2.0it/s, loss=nan]",
    "Validation DataLoader 0:  10%|#  | 3/30 [00:01<00:10, 2.0it/s, loss=nan]",
    "nan_loss_threshold: 3, step 3",
    "check_for_nan_in_loss: True, step 3",
    "epoch 0 | valid | loss nan",
    "epoch 0, validation_loss: nan",
    "step 100 - dev set loss = nan",
    "step 0 | train loss 2.31 | previous loss nan",
    "step 0 | loss=2.31 (avg nan)",
    "step 0 | loss change nan",
    "step 0 running mean of loss nan loss 2.31",
    "epoch 0 best_loss nan",
    "step 3: NaN loss guard enabled",
    "step 3 skipped: loss_nan=0",
    "step 3 loss: nan-safe reduction",
    "step 0 old loss nan",
    "step 3: loss 2.31 vs nan",
    "target_loss=nan step=3",
    "step 1 aux loss nan",
    "step 0 loss_val nan",
    "step 3 ref loss nan",
    "step 3 loss variance nan",
    "step 3 loss: 2.31 loss_std: nan",
)


def of_script(line: str) -> tuple[str, ...]:
    """Return why a script's number is suspect beside a line."""
    verdict = parsed(["epoch 1 loss 2.5", line, "performance: 100 tokens/s"]).verdict
    assert verdict.status is Status.SUCCESS
    return verdict.suspect


@each_row("line", BROKEN)
def test_a_training_loss_of_nan_is_doubted(line):
    (doubt,) = of_script(line)
    assert doubt.startswith(("a line reports a loss that is not finite: ", "the loss is not finite"))  # a bar's step


@each_row("line", HARMLESS)
def test_another_loss_is_none_of_a_training_step(line):
    assert of_script(line) == ()


@each_row("line", ["[rank3]: {}", "3: {}", "2026-11-22 10:00:00,000 - root - INFO - {}", "    {}", "{}\x1b[0m"])
def test_what_stands_before_a_line_changes_nothing(line):
    assert of_script(line.format("step 3 loss: nan"))
    assert of_script(line.format("eval: step 3 loss: nan")) == ()


@each_row("line", ["Validation epoch 0, loss: nan", "step 0 | loss 2.31 | ema loss: nan"])
def test_beside_the_steps_of_a_framework_it_is_none_either(line):
    losses = [6.2 - n / 50 for n in range(12)]
    assert parsed(titan(losses, between=[line])).verdict.suspect == ()
    assert parsed([*titan(losses), "step 3 train loss: nan"]).verdict.suspect
