"""Runs the command of a systemd unit as systemd would, as far as one process can: `confine.py UNIT`.

Applied are the user, the working directory, the limits, the umask, the read-only file system with
the unit's own folders, no capabilities, no new privileges, no memory that is writable and
executable, and the filters of system calls and of address families. A call that the unit does not
allow ends the process here, where the unit would only answer EPERM: so a test notices it.

Runs as root in a mount namespace of its own (`unshare --mount`).
"""

import ctypes
import os
import pathlib
import pwd
import re
import resource
import shlex
import socket
import subprocess
import sys

PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP, PR_SET_MDWE = 38, 24, 65
SCMP_ACT_KILL_PROCESS, SCMP_ACT_ALLOW, SCMP_CMP_EQ = 0x80000000, 0x7FFF0000, 4

# Settings that have no effect on one process, or that the test's root does not have.
LEFT_OUT = {
    *("Type", "ExecReload", "Restart", "RestartSec", "RestartPreventExitStatus", "TimeoutStartSec", "TimeoutStopSec"),
    *("RuntimeDirectoryPreserve", "DevicePolicy", "LockPersonality", "PrivateDevices", "PrivateUsers"),
    *("ProtectClock", "ProtectControlGroups", "ProtectHome", "ProtectHostname", "ProtectKernelLogs"),
    *("ProtectKernelModules", "ProtectKernelTunables", "ProtectProc", "RemoveIPC", "RestrictNamespaces"),
    *("RestrictRealtime", "RestrictSUIDSGID", "SystemCallArchitectures", "SystemCallErrorNumber", "Group"),
}
FOLDERS = {"StateDirectory": "/var/lib", "LogsDirectory": "/var/log", "RuntimeDirectory": "/run"}


class SyscallArgument(ctypes.Structure):
    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


def service(path):
    """The settings of the section [Service]: {name: [value, …]}; `%i` is the name's part behind @."""
    instance = re.search(r"@(.*)\.service$", path)
    template = re.sub(r"@.*\.service$", "@.service", path)
    text = pathlib.Path(template).read_text().replace("%i", instance[1] if instance else "")
    section = text.split("[Service]")[1].split("\n[")[0]
    settings = {}
    for line in section.splitlines():
        if line and not line.startswith("#"):
            name, value = line.split("=", 1)
            settings.setdefault(name, []).append(value)
    return settings


def members(name):
    """The system calls of a set such as `@aio`."""
    if not name.startswith("@"):
        return {name}
    listed = subprocess.run(["systemd-analyze", "syscall-filter", name], capture_output=True, text=True, check=True)
    words = [line.strip() for line in listed.stdout.splitlines()[1:]]
    return set().union(*(members(word) for word in words if word and not word.startswith("#")))


def allowed(filters):
    calls = set()
    for line in filters:
        named = set().union(*(members(word) for word in line.removeprefix("~").split()))
        calls = calls - named if line.startswith("~") else calls | named
    return calls | members("@default")


def filter_calls(filters, families):
    """Loads the filter; from now on this process may only execute the unit's command."""
    seccomp = ctypes.CDLL("libseccomp.so.2")
    seccomp.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(seccomp.seccomp_init(ctypes.c_uint32(SCMP_ACT_KILL_PROCESS)))
    allow = ctypes.c_uint32(SCMP_ACT_ALLOW)
    for name in sorted(allowed(filters) - {"socket"}):
        number = seccomp.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:
            assert seccomp.seccomp_rule_add_array(context, allow, number, 0, None) == 0, name
    number = seccomp.seccomp_syscall_resolve_name(b"socket")
    for family in families:
        only = (SyscallArgument * 1)(SyscallArgument(0, SCMP_CMP_EQ, getattr(socket, family), 0))
        assert seccomp.seccomp_rule_add_array(context, allow, number, 1, only) == 0, family
    assert seccomp.seccomp_load(context) == 0, "the filter is refused"


def bytes_or_number(value):
    return resource.RLIM_INFINITY if value == "infinity" else int(value)


def folders(settings, user):
    """Makes the unit's own folders, and returns those that the process may write to."""
    own = []
    for name, above in FOLDERS.items():
        for folder in settings.pop(name, [""])[0].split():
            path = pathlib.Path(above, folder)
            path.mkdir(exist_ok=True)
            os.chown(path, user.pw_uid, user.pw_gid)
            path.chmod(int(settings.get(f"{name}Mode", ["0755"])[0], 8))
            own.append(str(path))
        settings.pop(f"{name}Mode", None)
    return own + [path.lstrip("-") for path in settings.pop("ReadWritePaths", [])]


def main(unit):
    libc = ctypes.CDLL(None, use_errno=True)
    settings = service(unit)
    take = lambda name, default="": settings.pop(name, [default])[0]  # noqa: E731
    user = pwd.getpwnam(take("User"))
    writable = folders(settings, user)
    # For the test, which stops the process by its id.
    pathlib.Path("/run", pathlib.Path(unit).name + ".pid").write_text(str(os.getpid()))
    assert take("ProtectSystem") == "strict"
    for path in writable:
        subprocess.run(["mount", "--bind", path, path], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", "/"], check=True)
    os.chdir(take("WorkingDirectory"))
    for limit in [name for name in settings if name.startswith("Limit")]:
        kind = getattr(resource, f"RLIMIT_{limit[5:].upper()}")
        most, allowed_most = bytes_or_number(take(limit)), resource.getrlimit(kind)[1]
        # In a container root may not raise a limit.
        raises = allowed_most != resource.RLIM_INFINITY and not 0 <= most <= allowed_most
        most = allowed_most if raises else most
        resource.setrlimit(kind, (most, most))
    os.umask(int(take("UMask"), 8))
    environment = {"PATH": os.environ["PATH"], **dict(word.split("=", 1) for word in sys.argv[2:])}
    for line in settings.pop("Environment", []):
        environment.update(word.split("=", 1) for word in shlex.split(line))
    for file in settings.pop("EnvironmentFile", []):
        words = shlex.split(pathlib.Path(file.lstrip("-")).read_text(), comments=True)
        environment.update(word.split("=", 1) for word in words)
    command = []
    for word in take("ExecStart").split():
        if word.startswith("${"):
            command.append(environment.get(word[2:-1], ""))
        else:
            command += environment.get(word[1:], "").split() if word.startswith("$") else [word]
    assert take("CapabilityBoundingSet") == take("AmbientCapabilities") == ""
    for capability in range(41):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    os.initgroups(user.pw_name, user.pw_gid)
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
    assert take("NoNewPrivileges") == take("MemoryDenyWriteExecute") == "yes"
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    # Older kernels lack it.
    libc.prctl(PR_SET_MDWE, 1, 0, 0, 0)
    filters, families = settings.pop("SystemCallFilter"), take("RestrictAddressFamilies").split()
    assert set(settings) <= LEFT_OUT, f"what is this? {set(settings) - LEFT_OUT}"
    filter_calls(filters, families)
    os.execve(command[0], command, environment)


if __name__ == "__main__":
    main(sys.argv[1])
