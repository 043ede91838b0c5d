"""Stands for ``__main__`` in processes that multiprocessing spawns from a worker.

Objects of the controller's script are pickled there under this module's name.
"""

import sys

sys.modules[__name__] = sys.modules["__main__"]
