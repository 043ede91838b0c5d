// Package device finds the accelerators of the machine it runs on, as far as
// this process may use them, and makes up virtual ones.
//
// Each kind of accelerator is a Finder; Find asks them in turn, each within a
// deadline, and what they see of the machine is a Machine, so tests can make
// one up. How each kind is asked:
//
//	NVIDIA  NVML, else nvidia-smi, else /proc/driver/nvidia; CUDA_VISIBLE_DEVICES
//	AMD     /sys/class/kfd and /sys/class/drm; ROCR_, HIP_ and CUDA_VISIBLE_DEVICES
//	Ascend  npu-smi, else /dev/davinci*; ASCEND_RT_VISIBLE_DEVICES
//
// NVML is loaded by a Python process of a few lines (nvml.py), never by this
// one. To load a library a Go program must be linked with the C library's
// loader, whether by cgo or by a package that does without a C compiler; it
// would then no longer start under musl or in an empty container. And a driver
// that hangs does so inside the kernel, where a thread can neither be
// interrupted nor killed; a process can be left behind. Python is there, as
// workers are written in it. nvidia-smi would be faster by the start of an
// interpreter, some 25 ms, but is no equal: one GPU that is lost makes it fail
// for all, and of MIG instances it tells less. Without Python it serves, and
// without both what the driver tells in /proc.
//
// The package imports spec alone. It opens no device and loads no driver's
// library: whoever asks stays safe to fork. It runs programs by os/exec, so a
// process that waits for all its children (package process) asks before it
// starts to.
package device
