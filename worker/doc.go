// Package worker makes workers in Go: programs that clusters run in the place
// of Python classes, called in the same way by the same controllers.
//
//	func main() {
//		worker.Main(func(info worker.Info) (*worker.Class, error) {
//			class := worker.NewClass("Verifier")
//			class.Register("verify", worker.DPCompute, verify, worker.Params("rows"))
//			return class, nil
//		})
//	}
//
//	func verify(ctx context.Context, rows []string) ([]float64, error) { … }
//
// A cluster of it is ClusterConfig{Command: []string{"./verifier"}} in Go and
// Cluster(worker_cls="exec:./verifier") in Python.
//
// # Batches
//
// A method may take and return a *[Batch]. In a mode that cuts rows each rank
// gets its share, as a handle; Record maps the rows. Arguments are released when
// the method returns, and its result when it is sent.
//
//	func score(ctx context.Context, b *worker.Batch) (*worker.Batch, error) {
//		record, err := b.Record()
//		if err != nil {
//			return nil, err
//		}
//		defer record.Release()
//		…
//		return muster.NewBatch(rewards, nil)
//	}
//
// # Life
//
//	started   by an agent, which tells over descriptor 3 what it is to be
//	making    the function given to Main makes the class; an error or a panic
//	          there is the cluster's reason for not starting
//	ready     calls run one after another, or several at once (Concurrency)
//	away      the head is gone: what runs goes on, results are kept, and a head
//	          is dialled for as long as the grace lasts (MUSTER_HEAD_GRACE)
//	ending    at SIGTERM, when the agent is gone, or no head is there in time:
//	          contexts of calls end, those that do not return within 2 s are
//	          left, OnEnd runs
//
// A method's error is the caller's; so is its panic, with its stack, and the
// worker lives on. A cancel, and the end of the worker, end a call's context;
// nothing else interrupts Go code. Whatever is printed is the worker's log. At a
// deadline the stacks of all goroutines are told, those of methods first.
//
// The package imports the controller's (a worker may call other clusters),
// value, object, wire, dispatch, process, session and spec. It never decides what is
// called.
package worker
