"""A folder that workers append to ``sys.path``; see `mainmodule.install`."""
