package main

import (
	"fmt"
	"go/constant"
	"go/token"
	"go/types"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/muster-rl/muster"
	"github.com/muster-rl/muster/worker"
)

// newVerifier makes one worker of the verifiers' cluster.
func newVerifier(worker.Info) (*worker.Class, error) {
	class := worker.NewClass("Verifier").Doc("Rewards for answers to arithmetic questions.")
	class.Register("verify", worker.DPCompute, verify, worker.Params("questions", "answers"))
	class.Register("score", worker.DPCompute, score, worker.Params("batch"))
	return class, nil
}

// score is verify for a batch: beside its columns, question and answer among
// them, comes one more, reward. The rows that came stay where they are.
func score(b *worker.Batch) (*worker.Batch, error) {
	questions, err := texts(b, "question")
	if err != nil {
		return nil, err
	}
	answers, err := texts(b, "answer")
	if err != nil {
		return nil, err
	}
	rewards, err := verify(questions, answers)
	if err != nil {
		return nil, err
	}
	column := array.NewFloat64Builder(memory.DefaultAllocator)
	column.AppendValues(rewards, nil)
	schema := arrow.NewSchema([]arrow.Field{{Name: "reward", Type: arrow.PrimitiveTypes.Float64}}, nil)
	scored, err := muster.NewBatch(array.NewRecordBatch(schema, []arrow.Array{column.NewArray()}, -1), nil)
	if err != nil {
		return nil, err
	}
	defer scored.Release()
	return b.Union(scored)
}

// texts are those of a column, copied: the mapped ones go with it.
func texts(b *worker.Batch, name string) ([]string, error) {
	column, err := b.Column(name)
	if err != nil {
		return nil, err
	}
	defer column.Release()
	rows, ok := column.(*array.LargeString)
	if !ok {
		return nil, fmt.Errorf("column %s is a %s, not text", name, column.DataType())
	}
	all := make([]string, rows.Len())
	for i := range all {
		all[i] = strings.Clone(rows.Value(i))
	}
	return all, nil
}

// verify gives 1 for a right answer, 0.1 for a wrong number, 0 for anything else.
func verify(questions, answers []string) ([]float64, error) {
	rewards := make([]float64, len(questions))
	for i, question := range questions {
		want, err := number(question)
		if err != nil {
			return nil, fmt.Errorf("question %d: %w", i, err)
		}
		got, err := number(answers[i])
		switch {
		case err != nil:
		case constant.Compare(got, token.EQL, want):
			rewards[i] = 1
		default:
			rewards[i] = 0.1
		}
	}
	return rewards, nil
}

// number works out an expression exactly, as the Go compiler does with constants.
func number(expression string) (constant.Value, error) {
	found, err := types.Eval(token.NewFileSet(), nil, token.NoPos, strings.TrimSpace(expression))
	if err != nil {
		return nil, fmt.Errorf("%q is no arithmetic: %w", expression, err)
	}
	if found.Value == nil || constant.ToFloat(found.Value).Kind() == constant.Unknown {
		return nil, fmt.Errorf("%q is not a number", expression)
	}
	return found.Value, nil
}
