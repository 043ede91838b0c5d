// Package lease counts who knows of which object in the stores: processes by
// the references that they were sent, calls by what their arguments and results
// name. It says when an object is seen for the first time and when nobody knows
// of it any more.
//
//	event                                   the count of (holder, object)
//	a maker names its object, New           maker +1
//	a frame with references goes to a       that process +1 for each object
//	process, or comes with a call           in it; the call, once
//	Release                                 -n, never below 0
//	End of a process or a call              all of its counts are 0
//	Replace                                 what the holder says, when it is back
//	Lend                                    none: the holder may read the object where
//	                                        it lies, until it says Unlend or has no count;
//	                                        a loan that ends soon is told by nobody
//
// Copies counts the other way round: which nodes have, or are getting, which chunks
// of objects of other nodes, and who of them a node that wants some is sent to.
//
// It is pure: it imports nothing of Muster, and the head, which serialises
// events, tells the stores. How late it is, it is told.
package lease
