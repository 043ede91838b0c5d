"""What of AReaL `muster.compat.areal` needs, for where AReaL is not installed.

Each module here stands for the one of AReaL's that is called as it is, with the same
names; with AReaL installed none of them is used, but for the names' types.
"""
