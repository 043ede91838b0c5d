// Package sim drives the pure cores with a virtual clock and a simulated network:
// nodes, workers and callers that die, connections that are cut, delayed and come
// back, heads that are killed and put together again. It is deterministic: a seed
// makes a script of what is done and what goes wrong, and the same script always
// runs the same way, so that a failure can be made small and shown.
//
//	script   what a seed leads to: clusters, calls, faults, each at its time
//	world    the clock and the links, which keep the order of what they carry,
//	         lose what is on them when they are cut, and know no other's order
//	head     the table of calls, dispatch and leases, fed with frames, as head does
//	caller   sends calls, keeps what is not answered, comes back
//	process  a worker: receives legs, runs them, keeps results, comes back
//	rules    what must hold whatever happens, looked at with every step
//
// The rules: a leg runs at most once, and again only where its method is
// idempotent and its process was replaced. A call is answered once, with what its
// arguments lead to, or with an error that something in the script explains. All
// ranks of a cluster see one order, in which each caller's calls are in its own.
// An object stays while somebody knows of it. When the script is over everything
// is answered in bounded time, and nothing is left in the tables.
//
//	make sim                      a thousand seeds
//	make sim SEED=17 SEEDS=1      one of them
//
// A seed that breaks a rule is made small by leaving out what does not matter, and
// printed as a script that Parse reads, with what its last head was told in the
// words of call/testdata.
//
// The package imports call, dispatch, placement, lease and spec. Nothing imports it.
package sim
