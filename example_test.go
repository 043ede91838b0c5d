package muster_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/muster-rl/muster"
)

// Eight verifiers that examples/go-verifiers makes with package worker.
func Example() {
	ctx := context.Background()
	s, err := muster.Start(ctx, muster.Options{Virtual: "1x8"})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	verify, err := s.Cluster(ctx, muster.ClusterConfig{
		Name: "verify", Command: []string{"go-verifiers"}, World: 8,
	})
	if err != nil {
		log.Fatal(err)
	}
	questions, answers := []string{"6*7", "1+1", "10/4.0"}, []string{"42", "3", "five halves"}
	rewards, err := muster.Call[[]float64](ctx, verify, "verify", questions, answers)
	fmt.Println(rewards, err)
	// Output: [1 0.1 0] <nil>
}

// A batch is cut by rows, each verifier adds a column to its share, and the shares
// come back as one, without the rows having moved.
func ExampleNewBatch() {
	ctx := context.Background()
	s, err := muster.Start(ctx, muster.Options{Virtual: "1x1"})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	verify, err := s.Cluster(ctx, muster.ClusterConfig{Name: "verify", Command: []string{"go-verifiers"}, World: 2})
	if err != nil {
		log.Fatal(err)
	}
	questions, answers := array.NewStringBuilder(memory.DefaultAllocator), array.NewStringBuilder(memory.DefaultAllocator)
	questions.AppendValues([]string{"6*7", "1+1", "10/4.0"}, nil)
	answers.AppendValues([]string{"42", "3", "five halves"}, nil)
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "question", Type: arrow.BinaryTypes.String},
		{Name: "answer", Type: arrow.BinaryTypes.String},
	}, nil)
	record := array.NewRecordBatch(schema, []arrow.Array{questions.NewArray(), answers.NewArray()}, 3)
	b, err := muster.NewBatch(record, map[string]any{"step": 1})
	if err != nil {
		log.Fatal(err)
	}
	defer b.Release()
	scored, err := muster.Call[*muster.Batch](ctx, verify, "score", b)
	if err != nil {
		log.Fatal(err)
	}
	defer scored.Release()
	rewards, err := scored.Column("reward")
	if err != nil {
		log.Fatal(err)
	}
	defer rewards.Release()
	meta, err := scored.Meta()
	fmt.Println(scored, rewards, meta, err)
	// Output: batch of 3 rows: question, answer, reward [1 0.1 0] map[step:1] <nil>
}

func ExampleGo() {
	ctx := context.Background()
	s, err := muster.Start(ctx, muster.Options{Virtual: "1x1"})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	verify, err := s.Cluster(ctx, muster.ClusterConfig{Name: "verify", Command: []string{"go-verifiers"}, World: 2})
	if err != nil {
		log.Fatal(err)
	}
	first := muster.Go[[]float64](ctx, verify, "verify", []string{"1"}, []string{"1"})
	second := muster.Go[[]float64](ctx, verify, "verify", []string{"2"}, []string{"1"})
	one, err := first.Get(ctx)
	fmt.Println(one, err)
	two, err := second.Get(ctx)
	fmt.Println(two, err)
	// Output:
	// [1] <nil>
	// [0.1] <nil>
}

func ExampleCodeOf() {
	ctx := context.Background()
	s, err := muster.Start(ctx, muster.Options{Virtual: "1x1"})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	verify, err := s.Cluster(ctx, muster.ClusterConfig{Name: "verify", Command: []string{"go-verifiers"}, World: 2})
	if err != nil {
		log.Fatal(err)
	}
	err = muster.Do(ctx, verify, "verify", []string{"1", "a lot"}, []string{"1", "1"})
	var e *muster.Error
	if errors.As(err, &e) {
		fmt.Println(muster.CodeOf(err), "in rank", e.Rank, "of", e.Cluster)
	}
	err = muster.Do(ctx, verify, "verfy", []string{"1"}, []string{"1"})
	fmt.Println(muster.CodeOf(err), err)
	late, cancel := context.WithTimeout(ctx, time.Nanosecond)
	defer cancel()
	err = muster.Do(late, verify, "verify", []string{"1"}, []string{"1"})
	fmt.Println(muster.CodeOf(err), errors.Is(err, context.DeadlineExceeded))
	// Output:
	// user in rank 1 of verify
	// not_found verify (Verifier) has no public method "verfy"; did you mean "verify"?
	// timeout true
}

// Workers of a Python class. TestPythonExample runs it.
func Example_python() {
	ctx := context.Background()
	s, err := muster.Start(ctx, muster.Options{Virtual: "1x8"})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	pool, err := s.Pool(ctx, 1, 8)
	if err != nil {
		log.Fatal(err)
	}
	actor, err := s.Cluster(ctx, muster.ClusterConfig{
		Name: "actor_train", Class: "pipeline.Actor", PyModules: []string{"examples"},
		Pool: pool, Devices: "0-7", TP: 2,
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := muster.Do(ctx, actor, "initialize", map[string]any{"scale": 2}); err != nil {
		log.Fatal(err)
	}
	rows, err := muster.Call[[]int](ctx, actor, "train_step", []int{1, 2, 3, 4, 5})
	fmt.Println(rows, err)
}

// A learner with a GPU of its own beside engines that have two each.
func ExampleSession_PoolOf() {
	ctx := context.Background()
	s, err := muster.Start(ctx, muster.Options{Virtual: "2x4"})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	pool, err := s.PoolOf(ctx, muster.PoolConfig{Bundles: []muster.Bundle{{GPUs: 1}, {GPUs: 2}, {GPUs: 2}}})
	if err != nil {
		log.Fatal(err)
	}
	for i, node := range pool.Nodes() {
		fmt.Println(node.Name, pool.DeviceIDs(i))
	}
	// Output:
	// node-1 [0]
	// node-0 [1 2]
	// node-0 [3 4]
}
