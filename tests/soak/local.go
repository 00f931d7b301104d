package main

import (
	"context"
	"strconv"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-proxy/fairlead/tests/soak/check"
)

func itoa(n int) string { return strconv.Itoa(n) }

// cutID divides the name of a local write into its batch and the rest.
func cutID(id string) (batch, rest string, ok bool) { return strings.Cut(id, "-") }

// settleLocal looks for what the writes to the local apiserver have left, batch by batch, until the
// returned function is called; that looks for the rest.
func (w *world) settleLocal(ctx context.Context, l *load) (end func()) {
	stopping, stop := context.WithCancel(ctx)
	var owner sync.WaitGroup
	owner.Go(func() {
		for stopping.Err() == nil {
			for range 2 { // what comes in 20 s or so: some dozens of writes
				l.dose(stopping, "", 100*w.o.rate)
			}
			w.settle(ctx, l.turn())
		}
	})
	return func() {
		stop()
		owner.Wait()
		w.settle(ctx, l.turn())
	}
}

// settle counts the objects of a batch, and deletes them.
func (w *world) settle(ctx context.Context, b *batch) {
	batch, _, _ := cutID(b.prefix())
	of := metav1.ListOptions{LabelSelector: "soak-batch=" + batch}
	err := w.api(ctx, func(ctx context.Context, k clients) error {
		list, err := k.core.CoreV1().ConfigMaps(namespace).List(ctx, of) // without a resourceVersion: of etcd, not of a cache
		if err != nil {
			return err
		}
		for i := range list.Items {
			w.checker.Executed(check.Execution{Receipt: check.Receipt{ID: list.Items[i].Labels["soak-id"], Server: "kube-apiserver"}})
		}
		w.journal.Write("settled", "batch", batch, "objects", len(list.Items))
		return nil
	})
	if err != nil {
		return // the soak is over
	}
	w.checker.Settle(func(id string) bool { return strings.HasPrefix(id, b.prefix()) })
	_ = w.api(ctx, func(ctx context.Context, k clients) error {
		return k.core.CoreV1().ConfigMaps(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, of)
	})
}
