"""Configuration of an exported Loopwise model. This file travels with the weights and needs only transformers."""

from transformers import PretrainedConfig


class LoopwiseConfig(PretrainedConfig):
    """A depth-recurrent model run at `num_steps` core passes.

    `loopwise` holds the model's own settings (see Loopwise's `ModelConfig`). `num_steps` is the depth; changing it,
    also by an override, changes `num_hidden_layers`, which counts one attention per layer of every pass, as caches and
    servers need.
    """

    model_type = "loopwise"

    def __init__(self, loopwise=None, num_steps=1, **kwargs):
        own = dict(loopwise or {})
        kwargs.pop("num_hidden_layers", None)
        self.loopwise, self.num_steps = own, num_steps
        if own:
            heads = own["num_heads"]
            self.vocab_size, self.hidden_size, self.intermediate_size = own["vocab_size"], own["d_model"], own["d_ff"]
            self.num_attention_heads, self.num_key_value_heads = heads, own["num_kv_heads"] or heads
            self.head_dim = own["head_dim"] or own["d_model"] // heads
            self.max_position_embeddings, self.rms_norm_eps = own["context"], own["norm_eps"]
            kwargs["tie_word_embeddings"] = own["tied"]
        super().__init__(**kwargs)

    @property
    def num_hidden_layers(self):
        own = self.loopwise or {"prelude_layers": 0, "core_layers": 1, "coda_layers": 0}
        return own["prelude_layers"] + own["core_layers"] * self.num_steps + own["coda_layers"]
