// Package process holds what Linux gives to keep processes in hand: a child
// subreaper that hears of every end below it, a thread to fork from that lives
// as long as the process, the table of /proc, and the clearing of what dead
// parents left behind.
//
// The rule it stands on: a process that uses a Reaper is a child subreaper, so
// whatever loses its parent below it becomes its own child. A child that was
// neither started nor adopted is therefore left over from something that died,
// whatever sessions, names or environments it gave itself, and Clear ends it.
//
// A process has at most one Reaper, and while it has one it must not use
// os/exec: the Reaper waits for every child, also for those.
//
// The package imports nothing of Muster. It never decides who should end.
package process
