"""What pyproject.toml cannot say: the wheel's tag.

The package has no extension module, only a static binary, so one wheel serves
every Python 3 of one architecture. `make wheel` names the platform; without it
(an editable install) the tag is what setuptools thinks.
"""

import os

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel


class Platlib(Distribution):
    """The binary makes it a platform's wheel, whatever the tag."""

    def has_ext_modules(self) -> bool:
        return True


class Tagged(bdist_wheel):
    """py3-none-PLATFORM."""

    def get_tag(self) -> tuple[str, str, str]:
        platform = os.environ.get("MUSTER_WHEEL_PLATFORM") or super().get_tag()[2]
        return "py3", "none", platform


setup(distclass=Platlib, cmdclass={"bdist_wheel": Tagged})
