package spec

// Method is what a worker class offers under one public name, as the worker
// reports it when it is ready.
type Method struct {
	Name       string  `msg:"name"`
	Registered bool    `msg:"registered"`
	Dispatch   string  `msg:"dispatch"` // "ONE_TO_ALL", …; "CUSTOM" for a user's functions
	Execute    string  `msg:"execute"`  // "ALL" or "RANK_ZERO"
	Collective bool    `msg:"collective"`
	Idempotent bool    `msg:"idempotent"` // running it again does no harm: it may follow a rank that is restarted
	OnTimeout  string  `msg:"on_timeout"` // "", "cancel" or "kill"
	Async      bool    `msg:"async"`
	Params     []Param `msg:"params"` // without self
	Custom     []byte  `msg:"custom"` // a value: (dispatch_fn, collect_fn)
}

// Param is one parameter of a Method.
type Param struct {
	Name    string `msg:"name"`
	Kind    int    `msg:"kind"` // inspect.Parameter.kind: 0 positional-only … 4 **kwargs
	Default bool   `msg:"default"`
}

// Description is a worker class as seen by callers.
type Description struct {
	Class   string   `msg:"class"`
	Methods []Method `msg:"methods"`
	Serial  bool     `msg:"serial"` // runs one call at a time
	Doc     string   `msg:"doc"`
	Engines bool     `msg:"engines"` // its workers can host further objects
}

// Engine is a further object that a worker hosts, under a name. A call of one is a
// call of its worker whose method is "engine/method"; what the worker itself does
// for engines are the methods of the engine "muster".
type Engine struct {
	Name  string `msg:"name"`
	Class string `msg:"class"`
}
