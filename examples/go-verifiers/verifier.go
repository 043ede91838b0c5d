package main

import (
	"fmt"
	"go/constant"
	"go/token"
	"go/types"
	"strings"

	"github.com/muster-rl/muster/worker"
)

// newVerifier makes one worker of the verifiers' cluster.
func newVerifier(worker.Info) (*worker.Class, error) {
	class := worker.NewClass("Verifier").Doc("Rewards for answers to arithmetic questions.")
	class.Register("verify", worker.DPCompute, verify, worker.Params("questions", "answers"))
	return class, nil
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
