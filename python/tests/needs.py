# SPDX-License-Identifier: Apache-2.0
"""Requirements of a test file; skips it with a reason if they are missing."""

from __future__ import annotations

import unittest


def pytorch() -> None:
    """Requires PyTorch in a version that attune.torch supports. Any other failure to import attune.torch fails the
    tests."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise unittest.SkipTest("PyTorch is not here") from None
    try:
        import attune.torch  # noqa: F401
    except ImportError as error:
        if "or later is needed" not in str(error):
            raise
        raise unittest.SkipTest(str(error)) from None
