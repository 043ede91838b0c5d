package head

import (
	"testing"
	"time"
)

func TestBudget(t *testing.T) {
	now := time.Unix(1000, 0)
	b := budget{most: 9, window: time.Minute}
	for i, want := range []int64{100, 200, 400, 800, 1600, 3200, 6400, 10000, 10000} {
		count, wait, ok := b.take(now)
		if !ok || count != i+1 || wait.Milliseconds() != want {
			t.Fatalf("restart %d: %d, %v, %v", i+1, count, wait, ok)
		}
		now = now.Add(time.Second)
	}
	if count, _, ok := b.take(now); ok || count != 9 {
		t.Fatalf("one more than the budget: %d, %v", count, ok)
	}
	// The oldest leaves the window, and there is room for one.
	now = time.Unix(1000, 0).Add(time.Minute)
	if count, wait, ok := b.take(now); !ok || count != 9 || wait != backoffMost {
		t.Fatalf("after the first has left the window: %d, %v, %v", count, wait, ok)
	}
	if _, _, ok := b.take(now); ok {
		t.Fatal("two for one that left")
	}
	// A quiet window, and it begins again.
	if count, wait, ok := b.take(now.Add(time.Minute)); !ok || count != 1 || wait != backoffFirst {
		t.Fatalf("after a quiet window: %d, %v, %v", count, wait, ok)
	}
	if _, _, ok := (&budget{window: time.Hour}).take(now); ok {
		t.Fatal("a budget of nothing")
	}
}
