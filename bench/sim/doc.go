// Command sim measures how the head's costs grow with the number of workers,
// without the hardware: the real head, with agents and workers that only speak
// the wire (backend/fake), relayed 8 a node as on real remote nodes.
//
// It is three processes of one binary, so that each one's costs are its own: the
// head, told apart by getrusage and its own heap; all nodes with their workers;
// and this one, which is the controller and holds the clock. Per size it joins
// the nodes, plans and starts one cluster, broadcasts and gathers, cuts and
// chains a list, loses a worker in the middle of a call, and stops.
//
//	main.go        the order of things
//	phases.go      what is measured, step by step
//	controller.go  the controller's side of the wire
//	head.go        the process with the head
//	nodes.go       the process with the nodes
//	report.go      table and JSON
//	plot.go        the picture
//
// It judges nothing but its own two bounds (-check) and starts no worker.
package main
