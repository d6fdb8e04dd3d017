"""The character tokenizer: nothing is lost, and wrong input is named."""

from error_messages import refused
from hypothesis import given
from hypothesis import strategies as st

from rlhfless.engine.tokenizers.char_tokenizer import SYMBOLS, CharTokenizer

TEXTS = st.text(alphabet=SYMBOLS, max_size=60)


@given(TEXTS)
def test_encode_and_decode_are_inverse(text):
    tokenizer = CharTokenizer()
    tokens = tokenizer.encode(text)
    assert len(tokens) == len(text)
    assert all(2 <= token < tokenizer.vocab_size for token in tokens)
    assert tokenizer.decode(tokens) == text


@given(TEXTS, TEXTS)
def test_decoding_stops_at_the_end_token_and_skips_padding(text, behind):
    tokenizer = CharTokenizer()
    padded = [tokenizer.pad_token_id, *tokenizer.encode(text, eos=True), *tokenizer.encode(behind)]
    assert tokenizer.decode(padded) == text


@given(st.text(min_size=1, max_size=20).filter(lambda s: len(set(s)) == len(s) and s.isprintable()))
def test_saved_tokenizer_is_the_same(tmp_path_factory, symbols):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    CharTokenizer(symbols).save(path)
    assert CharTokenizer.load(path) == CharTokenizer(symbols)


def test_wrong_input_is_named(tmp_path):
    with refused(ValueError, "'Z'"):
        CharTokenizer().encode("1Z")
    with refused(ValueError):
        CharTokenizer("aa")
    path = tmp_path / "t.json"
    path.write_text("{")
    with refused(ValueError):
        CharTokenizer.load(path)
    path.write_text('{"type": "bpe"}')
    with refused(ValueError):
        CharTokenizer.load(path)
