"""What a file of tests needs, or the reason why it is left out."""

from __future__ import annotations

import unittest


def pytorch() -> None:
    """PyTorch, of a version that attune.torch takes. Any other failure to import attune.torch is one of the tests'."""
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
