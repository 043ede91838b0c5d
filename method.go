package muster

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/muster-rl/muster/spec"
)

// Kinds of parameters, as Python's inspect numbers them.
const (
	positionalOnly = iota
	positionalOrKeyword
	varPositional
	keywordOnly
	varKeyword
)

// method is a public method as calls are checked against, before anything is
// sent.
type method struct {
	*spec.Method
	title string // Class.method
}

func newMethod(m *spec.Method, class string) *method {
	return &method{m, class[strings.LastIndexByte(class, '.')+1:] + "." + m.Name}
}

// method finds a method by name; registered: only one that can be called by its
// mode.
func (c *Cluster) method(name string, registered bool) (*method, error) {
	m := c.methods[name]
	var e *spec.Error
	switch {
	case m == nil:
		e = spec.Errorf(CodeNotFound, "%s (%s) has no public method %q", c.Name(), c.info.Description.Class, name)
		names := slices.Sorted(maps.Keys(c.methods))
		if near := spec.NearestName(name, names); near != "" {
			e.Message += fmt.Sprintf("; did you mean %q?", near)
		} else {
			e.Message += "; it has " + strings.Join(names, ", ")
		}
	case registered && !m.Registered:
		e = spec.Errorf(CodeNotFound, "%s is not registered, so a cluster cannot be called by it: call All() or Rank(r) of the cluster, or register it", m.title)
	case registered && m.Dispatch == "CUSTOM":
		e = spec.Errorf(CodeInvalid, "%s is dispatched by functions of its own, which run in Python: call All() of the cluster with PerRank, or register a mode", m.title)
	default:
		return m, nil
	}
	e.Cluster, e.Method = c.Name(), name
	return nil, e
}

// check refuses arguments that the method does not take.
func (m *method) check(args []any, kwargs Kwargs) error {
	why := m.misfit(len(args), kwargs)
	if why == "" {
		return nil
	}
	e := spec.Errorf(CodeType, "%s cannot be called so: %s. Its signature is %s", m.title, why, m.signature())
	e.Method = m.Name
	return e
}

func (m *method) misfit(given int, kwargs Kwargs) string {
	names := map[string]bool{} // that a keyword can have, and whether that is still open
	rest, anyKeyword, taken := false, false, 0
	var missing []string
	for _, p := range m.Params {
		switch p.Kind {
		case varPositional:
			rest = true
		case varKeyword:
			anyKeyword = true
		case positionalOnly, positionalOrKeyword:
			open := taken >= given
			taken++
			if p.Kind == positionalOrKeyword {
				names[p.Name] = open
			}
			_, named := kwargs[p.Name]
			if open && !p.Default && (!named || p.Kind == positionalOnly) {
				missing = append(missing, p.Name)
			}
		case keywordOnly:
			names[p.Name] = true
			if _, named := kwargs[p.Name]; !named && !p.Default {
				missing = append(missing, p.Name)
			}
		}
	}
	if given > taken && !rest {
		return fmt.Sprintf("it takes %d positional arguments and %d were given", taken, given)
	}
	for _, name := range slices.Sorted(maps.Keys(kwargs)) {
		open, known := names[name]
		if known && !open {
			return fmt.Sprintf("%s is given twice, by position and by name", name)
		}
		if !known && !anyKeyword {
			return fmt.Sprintf("it has no parameter %s", name)
		}
	}
	if len(missing) > 0 {
		return "missing " + strings.Join(missing, ", ")
	}
	return ""
}

// signature shows the method as Python would.
func (m *method) signature() string {
	var shown []string
	star := false
	for i, p := range m.Params {
		text := p.Name
		switch p.Kind {
		case varPositional:
			text, star = "*"+text, true
		case varKeyword:
			text = "**" + text
		case keywordOnly:
			if !star {
				shown, star = append(shown, "*"), true
			}
		}
		if p.Default {
			text += "=..."
		}
		shown = append(shown, text)
		if p.Kind == positionalOnly && (i+1 == len(m.Params) || m.Params[i+1].Kind != positionalOnly) {
			shown = append(shown, "/")
		}
	}
	return m.Name + "(" + strings.Join(shown, ", ") + ")"
}
