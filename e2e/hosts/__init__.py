"""Several hosts out of one machine, for tests of what happens between hosts.

    with Hosts(3) as hosts:
        hosts.run(0, ["hostname"])
        hosts.link(1, up=False)
        ray = hosts.ray_up()

A host is a network namespace on a switch, with a pid, mount and host name space
of its own: its processes see and reach no others, it has its own /dev/shm and
/etc/hosts, and one folder (`scratch`, at the same path everywhere) that is its
own. All else of the machine is there, unless `bare` says that a host is not to
have the tree. Needs root and Linux's namespaces; without, tests are skipped as
"needs hosts".
"""

from hosts.network import Host, Hosts, Running, Unavailable
from hosts.rays import Ray, python_with_ray

__all__ = ["Host", "Hosts", "Ray", "Running", "Unavailable", "python_with_ray"]
