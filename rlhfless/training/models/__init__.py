"""The shipped tiny model, loading of pretrained models, tokenizers, supervised warm-up."""
