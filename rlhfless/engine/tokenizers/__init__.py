"""Tokenizers of models: the character tokenizer of the tiny model, and those of transformers."""
