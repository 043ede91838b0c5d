package spec

import (
	"errors"
	"fmt"
)

// Errorf makes an Error of a code with a message.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Rank: -1}
}

// AsError returns err as an Error, wrapping what is none as CodeInternal.
func AsError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return Errorf(CodeInternal, "%v", err)
}
