"""A wheel holds the library alone; an editable install has `train` and `eval` of the clone as well.

Their names are too common to install them for everybody: they would hide a user's own packages of these names.
"""

from setuptools import setup
from setuptools.command.build_py import build_py

LIBRARY = "performer_string"


class BuildLibrary(build_py):
    """Copy the packages of the library into a wheel, and no others."""

    def run(self) -> None:
        if not self.editable_mode:
            self.packages = [name for name in self.packages if name.split(".")[0] == LIBRARY]
        super().run()


setup(cmdclass={"build_py": BuildLibrary})
