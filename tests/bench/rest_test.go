package main

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestAvailableIn(t *testing.T) {
	log := strings.Join([]string{
		`time=1 level=INFO msg="availability changed" apiservice=v1.bench.example.com status=True reason=Passed message="all checks passed"`,
		`time=2 level=INFO msg="availability changed" apiservice=v1.g1.bench.example.com status=False reason=FailedDiscoveryCheck message="status=True"`,
		`time=3 level=INFO msg="availability changed" apiservice=v1.g2.bench.example.com status=True reason=Passed message=""`,
		`time=4 level=INFO msg="availability changed" apiservice=v1.bench.example.com status=True reason=Passed message="again"`,
		`time=5 level=INFO msg="availability changed" apiservice=v1.g2.bench.example.com status=Unknown reason=Gone message=""`,
		`time=6 level=INFO msg="availability changed" apiservice=v1.apps status=True reason=Local message=""`,
		`time=7 level=INFO msg="weather changed" apiservice=v1.g3.bench.example.com status=True`,
	}, "\n")
	if n := availableIn([]byte(log)); n != 1 {
		t.Errorf("%d are available, want 1", n)
	}
}

// A process that waits ten times is scheduled at least as often.
func TestScheduled(t *testing.T) {
	_, before := scheduled(os.Getpid())
	const times = 10
	for range times {
		<-time.After(time.Millisecond)
	}
	if cpu, after := scheduled(os.Getpid()); after-before < times || cpu <= 0 {
		t.Errorf("scheduled %d times, %v in total", after-before, cpu)
	}
}
