// Package dispatch decides who gets what and what comes back: how the arguments
// of one call are cut for the ranks of a cluster, which ranks run it, whose
// results are collected, in which order, and how they are joined.
//
// A Mode is a row of orthogonal choices, not code of its own:
//
//	            Cut       Over    Feed      Keep      Order  Join
//	ONE_TO_ALL  nothing   -       -         everyone  rank   list
//	ALL_TO_ALL  elements  ranks   -         everyone  rank   list
//	DP_MP_…     rows      dp      everyone  outputs   part   chain
//
// Request.Plan applies one to the shapes of a call's arguments. Plans work on
// lengths and indices; packages wire and batch do the same to bytes. Ranks that
// get the same arguments share a part, so that each is encoded once, however many
// ranks there are.
//
// Rows are cut evenly, unless a batch says otherwise (batch.Cut): then all
// arguments whose rows are cut are cut as it says.
//
// The package is pure and imports spec and batch alone: it does no I/O, reads no clock
// and keeps no state, and the same request always gives the same plan. Who gets
// what in every mode and shape is written out in testdata.
package dispatch
