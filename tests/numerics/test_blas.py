from __future__ import annotations

import threadpoolctl

from lowbit.numerics.blas import one_blas_thread


def test_matrix_products_have_one_thread_for_a_while() -> None:
    def threads() -> set[int]:
        # NumPy's own: other packages may bring libraries that are loaded later.
        found = (row for row in threadpoolctl.threadpool_info() if row["user_api"] == "blas")
        return {row["num_threads"] for row in found if "numpy" in row["filepath"]}

    before = threads()

    with one_blas_thread():
        assert threads() <= {1}

    assert threads() == before
