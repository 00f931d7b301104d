//go:build !linux

package backend

import "time"

// resend does nothing: only Linux has the option, elsewhere keep-alive must do.
func resend(int, time.Duration) {}
