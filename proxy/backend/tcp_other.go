//go:build !linux

package backend

import "time"

// setUserTimeout does nothing: only Linux has the option, elsewhere keep-alive must do.
func setUserTimeout(int, time.Duration) {}
