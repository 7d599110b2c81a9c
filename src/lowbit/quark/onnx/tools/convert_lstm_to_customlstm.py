"""Replace LSTM by Quark's own: not built, because only AMD's compiled library runs it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lowbit.quark.errors import NotSupportedError
from lowbit.quark.onnx.tools import front


def main(arguments: Sequence[str] | None = None) -> int:
    """Say that there is no such operator here."""
    del arguments

    def work() -> None:
        raise NotSupportedError("ExtendedLSTM is not supported: a standard LSTM stays as it is")

    return front.guarded("convert_lstm_to_customlstm", work)


if __name__ == "__main__":
    sys.exit(main())
