"""Other systems' interfaces on Muster: pipelines written for them run after an import change.

Each module here is thin: it has the names, the refusals and the defaults of the
system that it stands for, and leaves placement, dispatch and calls to Muster.
None of them imports the system itself.
"""
