"""The older name of ``quark.common.utils.testing_utils``."""

from lowbit.quark.common.utils.testing_utils import (
    delete_directory_content,
    use_temporary_directory,
)

__all__ = ["delete_directory_content", "use_temporary_directory"]
