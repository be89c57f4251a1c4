from madlite import TemplateBackend, Variant, hookimpl, step_pattern


class Tiny(TemplateBackend):
    name = "tiny"
    template = "tiny/run.sh.j2"
    step = step_pattern(r"step=(?P<n>\d+) tps=(?P<tokens_per_s_per_gpu>[\d,.]+) loss=(?P<loss>\S+)")

    def variants(self, card, machine):
        yield Variant(model="tiny", mode="pretrain", precision="BF16", micro_batch=2, steps=20)

    def settings(self, card, variant, machine):
        return {"lr": 0.001}


@hookimpl
def madlite_backends():
    return [Tiny()]


@hookimpl
def madlite_cards():
    return [{"name": "tiny_model", "backend": "tiny", "tags": ["tiny"], "n_gpus": "-1", "runtimes": ["host"]}]
