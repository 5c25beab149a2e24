"""Recurrent networks by PyTorch: the forms that its adapter has to translate, and those that it declines."""

import pytest

from dnncanon.conformance.backends import load
from dnncanon.conformance.case import Case
from dnncanon.conformance.execute import execute
from dnncanon.reports import CaseResult, Verdict

pytest.importorskip("torch")

BIDIRECTIONAL = "num_layers=2 bidirectional=true"
TRANSLATED = {
    "some sequences are empty": (
        "gru_forward x=float32[3,4,2] weights=float32[63] h0=float32[1,4,3] hidden_size=3 "
        "lengths=2,0,3,1 padding_fill=7.0"
    ),
    "gradient where some sequences are empty": (
        "lstm_backward dy=float32[3,4,3] x=float32[3,4,2] weights=float32[84] h0=float32[1,4,3] "
        "c0=float32[1,4,3] dhy=float32[1,4,3] dcy=float32[1,4,3] hidden_size=3 lengths=2,0,3,1"
    ),
    "packed": (
        "rnn_tanh_backward dy=float64[6,6] x=float64[6,2] weights=float64[108] "
        f"dhy=float64[4,3,3] hidden_size=3 batch_sizes=3,2,1 {BIDIRECTIONAL}"
    ),
    "projected": (
        "lstm_forward x=float32[3,2,2] weights=float32[78] h0=float32[1,2,2] c0=float32[1,2,3] "
        "hidden_size=3 projection_size=2"
    ),
    "the recurrent bias alone": (
        "gru_backward dy=float32[3,2,3] x=float32[3,2,2] weights=float32[54] hidden_size=3 "
        "bias_mode=single_recurrent"
    ),
    "16 bits": "lstm_forward x=bfloat16[3,2,2] weights=bfloat16[84] hidden_size=3",
}
DECLINED = {
    "reserve": "lstm_forward x=float32[1,1,1] weights=float32[16] hidden_size=1 training=true",
    "clips": "lstm_forward x=float32[1,1,1] weights=float32[16] hidden_size=1 cell_clip=-1.0,1.0",
    "resets": "gru_forward x=float32[1,1,1] weights=float32[12] hidden_size=1 reset=before",
    "matrix W": "gru_forward x=float32[1,1,1] weights=float32[9] hidden_size=1 input_mode=skip",
    "projects": "lstm_forward x=float32[1,1,1] weights=float32[17] hidden_size=1 projection_size=1",
    "without steps": "gru_forward x=float32[1,1,1] weights=float32[12] hidden_size=1 lengths=0",
    "random numbers": (
        "gru_backward dy=float32[1,1,1] x=float32[1,1,1] weights=float32[24] hidden_size=1 "
        "num_layers=2 dropout=0.5"
    ),
}


def judged(line: str) -> CaseResult:
    return execute(load("torch"), Case.parse(f"{line} fill=normal seed=3"))


@pytest.mark.parametrize("line", TRANSLATED.values(), ids=list(TRANSLATED))
def test_torch_conforms_in_every_form_that_is_translated(line: str) -> None:
    result = judged(line)
    assert result.verdict is Verdict.PASSED, result.message


@pytest.mark.parametrize("reason", DECLINED)
def test_what_torch_lacks_is_declined_with_the_reason(reason: str) -> None:
    result = judged(DECLINED[reason])
    assert (result.verdict, reason in result.message) == (Verdict.UNSUPPORTED, True), result.message
