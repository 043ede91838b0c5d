// Package object is the objects of stores as one process knows them: those that
// it made, those that it was told of, and those whose bytes it has mapped.
//
// Three rights end each by itself, and each may end by Release or Close, or when
// the collector finds that nothing can use it any more:
//
//	Object  to name an object in frames: counted at the head, which keeps the
//	        object for as long as somebody knows of it
//	Set     some objects that a frame, a value or a batch needs; it has a use of
//	        each
//	Mapped  an object's bytes, leased at its store
//
// A Link is the connection by which the head is told. A frame that came by it
// brings a credit for each object that it names (Arrived); what this process
// made gets one when a frame first names it (Send). Credits that nobody needs
// any more go back over the same link, many in one notice. With a leg objects are
// lent as well (Lent); this process reads none of them where it lies, and says so
// with the leg's answer (Settle), so that their store may spill them.
//
// Bytes that are mapped and handles that are held are nothing to Go's collector,
// which may so let a small heap hold the store's last gigabyte. Stores count
// them, and have it run when they have doubled.
//
// The package imports store, wire and spec. It never reads what the bytes mean.
package object
