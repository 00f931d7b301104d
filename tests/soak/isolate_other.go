//go:build !linux

package main

import "errors"

func isolated() bool { return true }

func isolate() int { return 1 }

func network() error { return errors.New("network namespaces are Linux's") }
